"""Where else grids train: engines that schedule, start and watch the work of other machines."""
