"""Calls that move what is computed: pages, slots, embeds."""
