"""Programs that use Pie, and the workshop of its demo model."""
