"""Address spaces, pools of pages and embeds, quotas, contention: pure, without socket, clock or thread."""
