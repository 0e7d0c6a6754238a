# Prompts in one shape and one order, from the datasets' own rows; benchmarks first, since no training prompt may
# repeat one of theirs. Free.


rule prompts:
    input:
        RUN.per_dataset("prompts", ".jsonl.zst"),


rule prompts_dataset:
    input:
        benchmarks=lambda wc: (
            []
            if wc.dataset in RUN.benchmarks
            else RUN.per_dataset("prompts", ".jsonl.zst", RUN.benchmarks)
        ),
    output:
        rows="<run>/prompts/{dataset}.jsonl.zst",
        summary="<run>/prompts/{dataset}.summary.json",
    log:
        "<logs>/prompts/{dataset}.log",
    resources:
        **RUN.resources("prompts"),
    params:
        cfg=lambda wc: RUN.slice("prompts", wc.dataset),
    shell:
        "{RUN.eyrie} --log {log} prompts --slice {params.cfg:q} --benchmark-prompts {input.benchmarks:q}"
        " --output {output.rows} --summary {output.summary}"
