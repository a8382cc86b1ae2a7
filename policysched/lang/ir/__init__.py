"""The checked form of a policy: typed expressions, the `Program`, and analyses over them."""
