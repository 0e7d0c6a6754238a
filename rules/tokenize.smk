# Token shards with the spans that the target wrote; shard k holds a fixed range of prompt indices. Minutes of CPU.


rule tokenize:
    input:
        RUN.all_shards("tokens", ".parquet"),


for name in RUN.datasets:

    rule:
        name:
            f"tokenize_{name}"
        input:
            generated=f"<run>/generated/{name}.jsonl.zst",
            target="<run>/target.json",
        output:
            RUN.shards(name, "tokens", ".parquet"),
        log:
            f"<logs>/tokenize/{name}.log",
        threads: RUN.threads("tokenize", workflow.cores)
        resources:
            **RUN.resources("tokenize"),
        params:
            cfg=RUN.slice("tokenize", name),
            folder=f"{RUN.run}/tokens/{name}",
        shell:
            "{RUN.eyrie} --log {log} tokenize --slice {params.cfg:q} --generated {input.generated}"
            " --target {input.target} --output {params.folder} --threads {threads}"
