"""The EAGLE-3 drafter: its shape, the module, the files both engines load, and the rules that guard them."""
