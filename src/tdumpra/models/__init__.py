"""A finished model elsewhere: validate it, adapt it, change its bank."""
