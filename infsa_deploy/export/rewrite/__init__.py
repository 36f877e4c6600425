"""From the user's module to a form on the custom ops that is proven to compute the same."""
