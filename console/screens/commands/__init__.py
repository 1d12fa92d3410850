"""What the screens' actions do."""
