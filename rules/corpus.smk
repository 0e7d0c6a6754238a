# The merge: which rows train, which are held out, how often each token is trained, the draft vocabulary. Seconds.


rule corpus:
    input:
        target="<run>/target.json",
        tokens=RUN.all_shards("tokens", ".parquet"),
    output:
        rows="<run>/corpus/rows.parquet",
        vocab="<run>/corpus/vocab.safetensors",
        manifest="<run>/corpus/manifest.json",
    log:
        "<logs>/corpus.log",
    params:
        cfg=RUN.slice("corpus"),
        tokens=[f"{RUN.run}/tokens/{name}" for name in RUN.datasets],
        folder=f"{RUN.run}/corpus",
    shell:
        "{RUN.eyrie} --log {log} corpus --slice {params.cfg:q} --target {input.target}"
        " --tokens {params.tokens} --output {params.folder}"
