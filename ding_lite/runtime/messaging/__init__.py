"""What nodes tell each other, as the runtime sees it: labels, events, streams and routers."""
