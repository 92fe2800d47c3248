"""How many processes? Short trials of the real command, over ranks and threads.

plan       which settings are worth a trial, in which order, and which cannot win
command    the user's command, as a trial runs it and as he is told to run it
trial      one trial: start it, watch its figures, end it
figures    what the ranks of a trial wrote, as one estimate
search     one trial after another
report     table, JSON and plot
"""
