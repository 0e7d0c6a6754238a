"""Prompts: one adapter per dataset shape; normalise, dedupe, decontaminate, order."""
