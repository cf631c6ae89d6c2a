"""States of texts, which some models keep beside keys and values."""
