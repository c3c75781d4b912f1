"""The WAN transport: frames, streams, queues and the rails made of them."""
