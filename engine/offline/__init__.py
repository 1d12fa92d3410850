"""An engine without a console: runs to completion, answers to a file of prompts, reports."""
