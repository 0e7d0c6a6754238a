# The EAGLE-3 drafter, trained and exported for SGLang and vLLM. GPU hours; checkpoints live in store/train by
# content, so a rerun continues or finds it finished.


rule train:
    input:
        target="<run>/target.json",
        corpus=rules.corpus.output,
        tokens=RUN.all_shards("tokens", ".parquet"),
        hidden=RUN.all_shards("hidden", ".safetensors"),
    output:
        config="<run>/drafter/config.json",
        weights="<run>/drafter/model.safetensors",
        metrics="<run>/train.jsonl",
    log:
        "<logs>/train.log",
    threads: RUN.threads("train", workflow.cores)
    resources:
        **RUN.resources("train"),
    params:
        cfg=RUN.slice("train"),
        corpus=f"{RUN.run}/corpus",
        tokens=[f"{RUN.run}/tokens/{name}" for name in RUN.datasets],
        hidden=[f"{RUN.run}/hidden/{name}" for name in RUN.datasets],
        drafter=f"{RUN.run}/drafter",
    shell:
        "{RUN.eyrie} --log {log} train --slice {params.cfg:q} --target {input.target} --corpus {params.corpus}"
        " --tokens {params.tokens} --hidden {params.hidden} --store {RUN.store:q}/train"
        " --gpus {RUN.config[resources][train][gpu]} --threads {threads}"
        " --output {params.drafter} --metrics {output.metrics}"
