"""Pictures as SVG and the style of pages that load nothing: for reports, and the page on Dask's dashboard."""
