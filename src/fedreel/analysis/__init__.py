"""Measures of models and data that more than one task or report needs."""
