"""Building blocks of pages, figures and texts: panels, charts, HTML, tables and numbers."""
