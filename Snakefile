"""Eyrie: prompts -> answers of the target -> tokens -> hidden states -> an EAGLE-3 drafter, measured.

snakemake                                        build everything (the laptop default)
snakemake -n                                     what is pending
snakemake generate                               one stage, all datasets
snakemake results/laptop/generated/demo_code.jsonl.zst      one file
snakemake --config experiment=kimi_k2_5 'set=[generate.budget_usd=50]'
"""

from snakemake.exceptions import WorkflowError
from snakemake.logging import logger
from snakemake.utils import min_version

min_version("9.27")

from eyrie.errors import EyrieError
from eyrie.workflow import Workflow, dataset_pattern

try:
    RUN = Workflow(f"{workflow.basedir}/conf", config)
    if workflow.output_settings.dryrun:
        for line in RUN.plan_lines():
            logger.info(line)
except EyrieError as error:
    raise WorkflowError(str(error)) from None


pathvars:
    run=RUN.run,
    logs=f"{RUN.run}/logs",


wildcard_constraints:
    dataset=dataset_pattern(RUN.datasets + RUN.benchmarks),


rule all:
    default_target: True
    input:
        "<run>/report.html",
        "<run>/drafter/README.md",


include: "rules/target.smk"
include: "rules/providers.smk"
include: "rules/prompts.smk"
include: "rules/generate.smk"
include: "rules/tokenize.smk"
include: "rules/corpus.smk"
include: "rules/capture.smk"
include: "rules/train.smk"
include: "rules/evaluate.smk"
include: "rules/report.smk"
