"""Reading the symptoms: from step records to findings with their causes, evidence and trades. No Textual here."""
