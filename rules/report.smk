# One self-contained page for the run and the drafter's card. Seconds.


rule report:
    input:
        target="<run>/target.json",
        providers="<run>/providers.json",
        summaries=RUN.per_dataset("generated", ".summary.json"),
        tokens=RUN.manifests("tokens"),
        hidden=RUN.manifests("hidden"),
        corpus="<run>/corpus/manifest.json",
        metrics="<run>/train.jsonl",
        drafter=[rules.train.output.config, rules.train.output.weights],
        evaluation="<run>/evaluation.json",
    output:
        page=report("<run>/report.html", category="Drafter", labels={"page": "report"}),
        card="<run>/drafter/README.md",
    log:
        "<logs>/report.log",
    params:
        cfg=RUN.slice("report"),
    shell:
        "{RUN.eyrie} --log {log} report --slice {params.cfg:q} --target {input.target} --providers {input.providers}"
        " --generated-summaries {input.summaries} --tokens {input.tokens} --hidden {input.hidden}"
        " --corpus {input.corpus} --metrics {input.metrics} --drafter {input.drafter[0]}"
        " --evaluation {input.evaluation} --output {output.page} --card {output.card}"
