# The target's answers, bought or made once and kept in the vault; a rerun buys only what the vault lacks.
# With gateway=sglang or vllm the job starts that server on its GPUs and stops it. Local: one host owns the vault.
# Money, concurrency and the key come in --runtime and rerun nothing.


localrules:
    fit,
    generate_dataset,


rule generate:
    input:
        RUN.per_dataset("generated", ".jsonl.zst"),


# generate.tokens_per_dataset=fit: the number is looked up beside the vault, and chosen when there is none.
rule fit:
    input:
        providers="<run>/providers.json",
        prompts=RUN.per_dataset("prompts", ".jsonl.zst"),
    output:
        "<run>/fit.json",
    log:
        "<logs>/fit.log",
    params:
        cfg=RUN.slice("fit"),
    shell:
        "{RUN.eyrie} --log {log} plan --slice {params.cfg:q} --settings {RUN.plan_settings:q}"
        " --providers {input.providers} --prompts {input.prompts} --vault {RUN.vault:q} --output {output}"


rule generate_dataset:
    input:
        providers="<run>/providers.json",
        prompts="<run>/prompts/{dataset}.jsonl.zst",
        target="<run>/target.json" if RUN.serves_target else [],
        fit=lambda wc: RUN.fit_file(wc.dataset),
    output:
        rows="<run>/generated/{dataset}.jsonl.zst",
        summary="<run>/generated/{dataset}.summary.json",
    log:
        job="<logs>/generate/{dataset}.log",
        server="<logs>/generate/{dataset}.server.log",
    threads: RUN.threads("generate", workflow.cores) if RUN.serves_target else 1
    resources:
        **RUN.resources("generate"),
    params:
        cfg=lambda wc: RUN.generate_slice(wc.dataset),
    shell:
        "{RUN.eyrie} --log {log.job} generate --slice {params.cfg:q} --runtime {RUN.runtime:q}"
        " --providers {input.providers} --prompts {input.prompts} {RUN.target_argument} --vault {RUN.vault:q}"
        " --fit {input.fit} --threads {threads} --output {output.rows} --summary {output.summary}"
        " --server-log {log.server}"
