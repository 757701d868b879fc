"""The fault rig: what is thrown at Heliograph, what was seen meanwhile, and the judge of it."""
