"""Find the best number of processes by short trials of the real command.

plan       which settings are worth a trial, in which order, and which cannot win
command    your command, as a trial runs it and as you should run it
trial      one trial: start it, watch its figures, end it
figures    what the ranks of a trial wrote, as one estimate
search     one trial after another
report     table, JSON and plot
"""
