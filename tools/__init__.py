"""What builds the book: `execute` runs chapters into notebooks, `render` makes the site of them."""
