"""Does a deployed model still answer rightly, and does it still look at the right thing? No torch is needed."""
