# The target model as a Hugging Face folder: found in store/targets, or converted/downloaded once. Free.


rule target:
    output:
        "<run>/target.json",
    log:
        "<logs>/target.log",
    threads: RUN.threads("target", workflow.cores)
    resources:
        **RUN.resources("target"),
    params:
        cfg=RUN.slice("target"),
    shell:
        "{RUN.eyrie} --log {log} target --slice {params.cfg:q} --store {RUN.store:q}/targets"
        " --threads {threads} --output {output}"
