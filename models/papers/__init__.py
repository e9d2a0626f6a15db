"""What papers published, reproduced: on the way of no default answer.

    thesis     Alavani 2023, chapter 4: delays (Algorithms 4, 5), scheduling (Algorithms 6 to 8)
    wang_chu   Wang and Chu, ICPADS 2018: a queueing model over core and memory clocks
    volkov     Volkov 2016: latency and throughput bounds
    roofline   Williams, Waterman and Patterson 2009
    scaling    over clocks: from counters (after Abe 2014 and Guerreiro 2019), from PTX tokens

Time models are asked for by name (``wattcast.models.time.base``). What scales over clocks is
asked for by ``wattcast.predictor.dvfs`` and ``counted``. Their studies are ``studies/papers``.
"""
