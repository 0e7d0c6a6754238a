# The target's hidden states over every token shard, one engine load for all shards of a dataset. GPU hours; kept in
# store/hidden by content, so a rerun links what is there. The job is told the GPUs of the configuration, since
# Snakemake clamps what it cannot give without a word.


rule capture:
    input:
        RUN.all_shards("hidden", ".safetensors"),


for name in RUN.datasets:

    rule:
        name:
            f"capture_{name}"
        input:
            tokens=RUN.shards(name, "tokens", ".parquet"),
            target="<run>/target.json",
        output:
            RUN.shards(name, "hidden", ".safetensors"),
        log:
            f"<logs>/capture/{name}.log",
        threads: RUN.threads("capture", workflow.cores)
        resources:
            **RUN.resources("capture"),
        params:
            cfg=RUN.slice("capture"),
            tokens=f"{RUN.run}/tokens/{name}",
            folder=f"{RUN.run}/hidden/{name}",
        shell:
            "{RUN.eyrie} --log {log} capture --slice {params.cfg:q} --target {input.target} --tokens {params.tokens}"
            " --store {RUN.store:q}/hidden --gpus {RUN.config[resources][capture][gpu]} --threads {threads}"
            " --output {params.folder}"
