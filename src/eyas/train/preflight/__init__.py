"""What is known, refused or estimated before the first step: `examine.plan_train`, then `examine.examine`."""
