"""Labels made by a person: pairs to ask about, answers that are never lost, the page."""
