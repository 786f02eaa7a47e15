"""What pages, figures and texts are made with: panels, charts, HTML, tables, numbers."""
