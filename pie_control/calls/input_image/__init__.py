"""InputImage: images to embeds."""
