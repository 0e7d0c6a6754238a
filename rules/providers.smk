# Which endpoints serve the target and which may answer, from the gateway's own catalogue. Free.


localrules:
    providers,


rule providers:
    input:
        target="<run>/target.json" if RUN.embedded else [],
    output:
        "<run>/providers.json",
    log:
        "<logs>/providers.log",
    params:
        cfg=RUN.slice("providers"),
    shell:
        "{RUN.eyrie} --log {log} providers --slice {params.cfg:q} --runtime {RUN.runtime:q}"
        " {RUN.target_argument} --output {output}"
