"""What tenants and their keys have done: for bills, and for whoever asks who did something."""
