"""What an inferlet reaches beyond itself: servers outside, topics, other inferlets."""
