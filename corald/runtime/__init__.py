"""asyncio around the pure core: the same controller, observer and actuator in every root."""
