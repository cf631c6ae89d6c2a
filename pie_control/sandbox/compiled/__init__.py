"""What of the sandbox is compiled: see `crossings`, and the theory of operation in calls.c."""
