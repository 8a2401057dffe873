"""Pictures of samples are not written."""


def save_image(*_, **__):
    """Write nothing."""


def make_grid(images, *_, **__):
    """Return the images as they are."""
    return images
