"""What a paid run will buy and cost, before it buys anything: tokens in hand and missing, dollars, what fits."""
