# Acceptance of the drafter, estimated and by real speculative decoding, which must stay lossless. Minutes.


rule evaluate:
    input:
        target="<run>/target.json",
        corpus=rules.corpus.output,
        tokens=RUN.all_shards("tokens", ".parquet"),
        hidden=RUN.all_shards("hidden", ".safetensors"),
        drafter=[rules.train.output.config, rules.train.output.weights],
        benchmarks=RUN.per_dataset("prompts", ".jsonl.zst", RUN.benchmarks),
    output:
        "<run>/evaluation.json",
    log:
        "<logs>/evaluate.log",
    threads: RUN.threads("evaluate", workflow.cores)
    resources:
        **RUN.resources("evaluate"),
    params:
        cfg=RUN.slice("evaluate"),
        drafter=f"{RUN.run}/drafter",
        corpus=f"{RUN.run}/corpus",
        tokens=[f"{RUN.run}/tokens/{name}" for name in RUN.datasets],
        hidden=[f"{RUN.run}/hidden/{name}" for name in RUN.datasets],
        benchmarks=RUN.benchmark_arguments(),
    shell:
        "{RUN.eyrie} --log {log} evaluate --slice {params.cfg:q} --target {input.target} --drafter {params.drafter}"
        " --corpus {params.corpus} --tokens {params.tokens} --hidden {params.hidden}"
        " --benchmarks {params.benchmarks} --gpus {RUN.config[resources][evaluate][gpu]} --threads {threads}"
        " --output {output}"
