"""Calls by which an inferlet reaches beyond itself: servers, other inferlets."""
