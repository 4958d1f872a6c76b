"""The six pages: each turns the model into lines of text for a size, and knows of no widgets."""
