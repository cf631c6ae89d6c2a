"""Pages that outlive the inferlet that filled them."""
