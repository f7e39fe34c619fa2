"""Who follows the metrics of runs beside metrics.csv: TensorBoard, Weights & Biases, one's own."""
