// cost
