#!/bin/sh
# The runs of docs/results, in the order in which they are made. Every command adds what its table does not
# hold yet, so that the plan can be stopped at any time and started again:
#
#     DATA=FOLDER BACKBONE=FOLDER/vit_tiny_patch16_224 sh docs/results/plan.sh [--dry-run | --jobs N ...]
#
# DATA holds cifar100, tiny-imagenet and pacs. Tables go to docs/results/miniature unless TABLES is given. Start it from a
# clone at a named commit, not from a tree that is being edited: each row says from which commit it comes.
set -u
here=$(cd "$(dirname "$0")" && pwd)
export OMP_NUM_THREADS=1
failed=0

# runs TABLE DATASET RECIPE [SETTINGS AND OPTIONS OF fedcue compare]...
runs() {
    table=$1 dataset=$2
    shift 2
    fedcue compare "$@" scale=cpu heldout=0.1 precision=bfloat16 workers=1 evaluation.prototype_sample=0 \
        evaluation.cls_sample=0 "data.root=$DATA/$dataset" "backbone=$BACKBONE" \
        --table "${TABLES:-$here/miniature}/$table.csv" $options || failed=1
}
options=$*
main="cifar100-pathological cifar100 cifar100-pathological"
one_rate="backbone.feature_norm=10 training.head_lr=0.1 training.prompt_lr=0.1"

# The main table: PEP-FedPT, what it is compared with, its control without priors, and ours; three seeds
runs $main --methods cue,ncm,pep,fedvpt,fedvpt_deep --seeds 0,1,2 \
    --variant "ncm: method.whiten=true" \
    --variant "cue: evaluation.priors=uniform" \
    --variant "pep: method.prior=uniform"
runs $main --methods head,fedpr,sgpt,pfedpg,ppt --seeds 0,1,2
runs $main --methods fed3r,fedcof,fedrod,lora,local,central --seeds 0,1,2

# When mixing pays: classes over width of the ViT, a client holding a tenth of them
for classes in 10 100 20 50; do
    runs mixing cifar100 cifar100-pathological --methods pep,fedvpt --seeds 0 \
        data.first_classes=$classes partition.clients=$classes partition.classes_per_client=$((classes / 10))
done
# the same over the classes that a client holds, and over images of a class
for held in 1 6 10; do
    runs mixing cifar100 cifar100-pathological --methods pep,fedvpt --seeds 0 partition.classes_per_client=$held
done
for images in 20 200; do
    runs mixing cifar100 cifar100-pathological --methods pep,fedvpt --seeds 0 data.train_per_class=$images
done

# The paper's ablations, one seed first
runs $main --methods none --seeds 0 \
    --variant "pep: method.layers=[0,1,2]" \
    --variant "pep: method.layers=[7,8,9]" \
    --variant "pep: method.temperature=100" \
    --variant "pep: privacy=paper" \
    --variant "fedvpt: method.prompts=50" \
    --variant "fedvpt: method.prompts=100" \
    --variant "pep: method.class_average=holders" \
    --variant "pep: $one_rate" --variant "fedvpt: $one_rate"

# The paper's one rate, with features of length 10, against the pair of rates: validation images choose
runs $main --methods none --seeds 0,1,2 --variant "head: $one_rate"
runs validation cifar100 cifar100-pathological --methods head --seeds 0,1,2 evaluation.on=validation \
    --variant "head: $one_rate"
runs validation cifar100 cifar100-pathological --methods fedvpt,pep,fedvpt_deep,fedpr,sgpt,pfedpg,ppt --seeds 0 \
    evaluation.on=validation --variant "fedvpt: $one_rate" --variant "pep: $one_rate" \
    --variant "fedvpt_deep: $one_rate" --variant "fedpr: $one_rate" --variant "sgpt: $one_rate" \
    --variant "pfedpg: $one_rate" --variant "ppt: $one_rate"

# The other splits
for split in cifar100-dirichlet:cifar100 tinyimagenet-pathological:tiny-imagenet pacs:pacs; do
    runs "${split%:*}" "${split#*:}" "${split%:*}" --methods cue,pep,fedvpt,fedvpt_deep,ncm,fed3r,fedcof --seeds 0,1,2 \
        --variant "cue: evaluation.priors=uniform" --variant "ncm: method.whiten=true"
    runs "${split%:*}" "${split#*:}" "${split%:*}" --methods head,fedpr,sgpt,pfedpg,ppt,fedrod,lora,local,central --seeds 0
done
runs cifar100-dirichlet cifar100 cifar100-dirichlet --methods none --seeds 0 \
    --variant "pep: method.prompts=5" --variant "pep: method.prompts=10"
runs cifar100-iid cifar100 cifar100-iid --methods cue,pep,fedvpt,ncm --seeds 0

# The control's two forms: the log prior, and the mask that only rules classes out
for split in cifar100-pathological:cifar100 cifar100-dirichlet:cifar100 pacs:pacs; do
    runs control "${split#*:}" "${split%:*}" --methods none --seeds 0,1,2 --variant "ncm: method.whiten=true" \
        --variant "ncm: method.whiten=true method.logit_prior=mask" \
        --variant "ncm: method.whiten=true method.logit_prior=test"
done

# Trained methods under differential privacy: an image, a trusted server
dp="privacy=dp privacy.unit=image privacy.where=central clients_per_round=27"
for clip in 8:0.25 2:0.1; do
    runs privacy cifar100 cifar100-pathological --methods cue --seeds 0 $dp rounds=4 \
        "privacy.max_epsilon=${clip%:*}" "privacy.clip=${clip#*:}" privacy.head_share=0.9
    runs privacy cifar100 cifar100-pathological --methods fedvpt,pep --seeds 0 $dp rounds=5 \
        "privacy.max_epsilon=${clip%:*}" privacy.clip=1 training.prompt_lr=0.005
done

exit $failed
