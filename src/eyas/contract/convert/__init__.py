"""A draft in another format: planned from headers, copied in slices, audited, renamed into place.

`conversion_plan.plan_conversion(reading, dialect, target)` gives the plan; `conversion_apply.apply_conversion` does it.
"""
