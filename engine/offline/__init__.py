"""An engine without a console: runs to their end, answers to a file of prompts, reports."""
