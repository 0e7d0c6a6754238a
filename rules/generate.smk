# The target's answers, bought or made once and kept in the vault; a rerun buys only what the vault lacks.
# Local: one host owns the vault. Money, concurrency and the key come in --runtime and rerun nothing.


localrules:
    generate_dataset,


rule generate:
    input:
        RUN.per_dataset("generated", ".jsonl.zst"),


rule generate_dataset:
    input:
        providers="<run>/providers.json",
        prompts="<run>/prompts/{dataset}.jsonl.zst",
        target="<run>/target.json" if RUN.embedded else [],
    output:
        rows="<run>/generated/{dataset}.jsonl.zst",
        summary="<run>/generated/{dataset}.summary.json",
    log:
        "<logs>/generate/{dataset}.log",
    threads: RUN.threads("generate", workflow.cores) if RUN.embedded else 1
    params:
        cfg=lambda wc: RUN.generate_slice(wc.dataset),
    shell:
        "{RUN.eyrie} --log {log} generate --slice {params.cfg:q} --runtime {RUN.runtime:q}"
        " --providers {input.providers} --prompts {input.prompts} {RUN.target_argument} --vault {RUN.vault:q}"
        " --threads {threads} --output {output.rows} --summary {output.summary}"
