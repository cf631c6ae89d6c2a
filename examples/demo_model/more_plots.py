"""The second half of the demo stories' plots; see `plots.py` for the format."""

# ruff: noqa: E501 - tables of words and templates read best one entry a line
from __future__ import annotations

from examples.demo_model.plots import DARK, GIFT, LOST, MAP, QUARREL, RACE, SEED, SHARE, STORM, STUCK, TRADE, Plot

NEW_CHILD = Plot(
    "new child",
    (
        "{friend} was new in Alderbrook. {friend.He} did not know anyone and [sat alone|stood alone] {place.at}.",
        '{hero} saw {friend.him} there. "Hello, I am {hero}," {hero.he} said. "[What is your name|Who are you]?"',
        '"I am {friend}," said {friend} [softly|in a quiet voice|shyly]. "[I have no friends here yet|Everything is new to me]."',
        '"[Then I will be your first friend|Come with me and I will show you the village]," said {hero}.',
        "¶",
        "First, {hero} [showed|took] {friend} {work.to}, where {adult} the {adult.kind} was {adult.busy}. {adult} gave them {food}.",
        "Then they went {out.to}. <nature>",
        "?There they met {pet} the {pet.kind}. {friend} [stroked|petted] {pet} [gently|carefully] and <smiled>.",
        "¶",
        'At the end of the day, {friend} was not [shy|lonely] any more. "[I like it here|Alderbrook is a good place]," said {friend}.',
        'The next morning, {friend} [gave {hero} {thing.a}|brought {hero} {thing.a} as a present]. "[For my first friend|Because you were kind to me]," {friend.he} said.',
        "<end>",
    ),
    "{hero} showed {friend}, who was new in Alderbrook, the village and became {friend.his} friend.",
    (
        ("Who was new in Alderbrook?", "{friend} was new in Alderbrook."),
        ("Where did {hero} meet {friend}?", "{hero} met {friend} {place.at}."),
        ("What did {adult} give them?", "{adult} gave them {food}."),
        ("What did {friend} give {hero}?", "{friend} gave {hero} {thing.a}."),
    ),
)

HELPER = Plot(
    "helper",
    (
        "{adult} the {adult.kind} was [ill|sick in bed|very tired] and could not work. [There was so much to do|The work had to wait] {work.at}.",
        '"[We must help|Let us help] {adult}," said {hero} to {friend}. "[Together we can do it|It will be fun]."',
        "So they went {work.to}. {hero} [swept the floor|cleaned the windows|carried wood], and {friend} [washed the tools|carried water|fed the hens].",
        "?{pet} the {pet.kind} [only slept in the sun|wanted to help too|got in the way].",
        "[By noon|After three hours], they were [tired but proud|hungry], so they ate {food}.",
        "¶",
        "[In the afternoon|Later], {hero} brought {adult} [a cup of tea|some hot soup|flowers]. {adult} was [surprised|amazed].",
        '"[Who did all the work|How can I thank you]?" asked {adult}. "[{friend} and I did it|It was nothing]," <said> {hero}.',
        "[After two days|A week later], {adult} was well again and gave {hero} {thing.a} and {friend} {thing2.a}.",
        "<end>",
    ),
    "{adult} the {adult.kind} was ill, so {hero} and {friend} did the work {work.at}.",
    (
        ("Who was ill?", "{adult} the {adult.kind} was ill."),
        ("Who helped {hero}?", "{friend} helped {hero}."),
        ("What did {hero} get from {adult}?", "{hero} got {thing.a}."),
        ("What did {friend} get from {adult}?", "{friend} got {thing2.a}."),
    ),
)

LETTER = Plot(
    "letter",
    (
        "Felix the postman had [a letter|an important letter] for {adult} the {adult.kind}, but he had [hurt his foot|too many parcels to carry].",
        '"[Can you take it|Could you bring it] {work.to}, {hero}?" asked Felix. "[Of course|Yes, I can do that]," <said> {hero}.',
        "{hero} put the letter in {hero.his} [pocket|bag] and [set off|started to walk].",
        "<way>",
        "Suddenly, the wind [took|blew] the letter away! It [flew|danced] through the air and landed {out.at}.",
        "¶",
        "{hero} ran {out.to}. The letter was [high in a tree|on a high branch], and {hero} could not reach it.",
        '{pet} the {pet.kind} [saw it too|was there]. {friend} came by as well. "[Climb on my back|Stand on my shoulders]," said {friend}.',
        '{hero} [stretched|reached up] and got the letter. "[Thank you|I could not have done it without you], {friend}!" {hero.he} said.',
        "¶",
        'At last, {hero} gave the letter to {adult}. {adult} read it and [smiled|laughed with joy]. "[My sister is coming to visit|My brother has a new baby|An old friend is coming to see me]!" {adult.he} said.',
        "{adult} gave {hero} and {friend} {food} [as a thank you|for their trouble].",
        "<end>",
    ),
    "{hero} carried a letter from Felix to {adult}, and {friend} helped when the wind blew it away.",
    (
        ("Who was the letter for?", "The letter was for {adult} the {adult.kind}."),
        ("Where did the letter land?", "The letter landed {out.at}."),
        ("Who helped {hero} reach the letter?", "{friend} helped {hero}."),
        ("What did {adult} give them?", "{adult} gave them {food}."),
    ),
)

MISSING_PET = Plot(
    "missing pet",
    (
        "{pet} the {pet.kind} was missing. {hero} [called and called|called {pet.his} name], but {pet} did not come.",
        "{hero} [put on {hero.his} boots|took {hero.his} coat] and went to look for {pet.him}. {friend} [came along|wanted to help].",
        "First, they looked {place.at}, but {pet} was not there.",
        "Then they looked {place2.at}. There they [saw|found] {adult} the {adult.kind}, who was {adult.busy}.",
        '"[Have you seen|Did you see] {pet}?" asked {friend}. "[Yes, I have|I think so]," <said> {adult}. "{pet.He} [ran|was on {pet.his} way] {out.to}."',
        "¶",
        "They [hurried|ran] {out.to}. <nature>",
        "[There was no sound|It was very quiet]. Then {hero} [saw something move|heard a small noise] [behind a bush|under some leaves].",
        "It was {pet}! {pet} had [found {thing.a}|dug up {thing.a}] and was [playing with it|sitting on it proudly].",
        '"[There you are|We looked for you everywhere]!" said {hero}. {hero.He} was <happy>.',
        "¶",
        "They took {pet} and {thing.the} home. [{pet} got {pet.his} dinner|{pet} slept all day] and [everything was well|all was good again].",
        "<end>",
    ),
    "{pet} the {pet.kind} was missing, and {hero} and {friend} found {pet.him} {out.at}.",
    (
        ("Who was missing?", "{pet} the {pet.kind} was missing."),
        ("Where was {pet}?", "{pet} was {out.at}."),
        ("Who had seen {pet}?", "{adult} the {adult.kind} had seen {pet}."),
        ("What had {pet} found?", "{pet} had found {thing.a}."),
        ("Where did they look first?", "First, they looked {place.at}."),
    ),
)

MUSIC = Plot(
    "music",
    (
        "{hero} [heard music|heard a beautiful song] {place.at}. {adult} the {adult.kind} was playing [an old flute|a small drum|a wooden fiddle].",
        '"[I want to play like that. Can you teach me|Can you teach me that], {adult}?" asked {hero}. "[It takes time|You must practise every day]," said {adult}.',
        "{hero} [practised|tried] every day {out.at}. At first, it sounded [terrible|like an angry goose|very bad].",
        "{pet} the {pet.kind} [ran away|hid under a bush|covered {pet.his} ears]. {friend} laughed. {hero} was <sad>.",
        "¶",
        '"[Do not give up|Nobody can do it at once]," said {adult}. "[I needed three years|Slow is also fast enough|Play one note well, then the next]."',
        "So {hero} went on. [After {number} weeks|When {season} was over], the music [was soft and clear|sounded sweet].",
        "Now {pet} [came closer and listened|sat down and did not move]. {friend} [danced|clapped {friend.his} hands].",
        "¶",
        "At the [village fair|big feast] {place2.at}, {hero} played [for everyone|in front of the whole village]. [People cheered|Everybody clapped].",
        '"I am sorry that I laughed," said {friend}. "[You play so well|That was wonderful]!" {hero} <smiled>.',
        "<end>",
    ),
    "{hero} learned to play music from {adult}, practised every day and played at the end for the whole village.",
    (
        ("Who taught {hero}?", "{adult} the {adult.kind} taught {hero}."),
        ("Where did {hero} practise?", "{hero} practised {out.at}."),
        ("Who laughed at first?", "{friend} laughed at first."),
        ("Where did {hero} play for everyone?", "{hero} played {place2.at}."),
    ),
)

CLOCK = Plot(
    "clock",
    (
        "The big clock {place.at} [had stopped|stood still]. [Nobody knew what time it was|The school bell did not ring|Everyone was late].",
        'Emil the clockmaker [looked at it|opened it] and [shook his head|sighed]. "[A small wheel is missing|One little wheel is gone]. Without it, the clock cannot run," he said.',
        '"[We will find it|Let us look for it]," said {hero} to {friend}.',
        "They looked {out.at} and found only {thing.a}. They looked {place2.at} and found [nothing|only dust].",
        "¶",
        "?<way>",
        "Then {hero} saw {pet} the {pet.kind}. Something [shiny|bright] was [in {pet.his} mouth|next to {pet.him}|under {pet.his} foot].",
        '"[The wheel|It is the little wheel]!" said {friend}. But {pet} [did not want to give it away|ran off with it].',
        "{hero} [had an idea|thought quickly]. {hero.He} [held out|offered {pet}] {food}. {pet} [dropped the wheel|let go of the wheel] and [ate happily|began to eat].",
        "¶",
        "They brought the wheel to Emil. [Soon|In no time], the clock [said tick, tock again|was running again].",
        '"[You saved the day|The village thanks you]," said Emil. {hero} and {friend} were <happy>.',
        "<end>",
    ),
    "The clock {place.at} stopped, and {hero} and {friend} got the missing wheel back from {pet} the {pet.kind}.",
    (
        ("What was missing?", "A small wheel of the clock was missing."),
        ("Who had the wheel?", "{pet} the {pet.kind} had the wheel."),
        ("What did {hero} give {pet}?", "{hero} gave {pet} {food}."),
        ("Where was the clock?", "The clock was {place.at}."),
    ),
)

BOAT = Plot(
    "boat",
    (
        "{hero} and {friend} wanted to build a [small|little] boat. They [asked|went to] {adult} the {adult.kind} for help.",
        "<hello>",
        '"We need [wood and a rope|some planks|an old sail]," <said> {friend}. {adult} [found|gave them] what they needed. "[Be careful with the saw|Measure twice and cut once]," {adult.he} said.',
        "They worked {out.at} for {number} days. {hero} [sawed the wood|held the planks], and {friend} [hammered the nails|painted the boat {thing.adjective}].",
        "?{pet} the {pet.kind} [left footprints on the wet paint|sat in the boat and would not leave].",
        "¶",
        "Then they put the boat on the water. [Oh no|But what was that]! There was a hole, and the boat [began to sink|filled with water].",
        '{hero} was <sad>. "[Let us try again|We can mend it]," said {friend}. "[Now we know what went wrong|A hole is only a hole]."',
        "They closed the hole with [wax|tar and cloth] and tried again. This time the boat [floated|stayed dry].",
        "¶",
        "They [sailed|rowed] past {place.the} and ate {food} on board. {adult} stood [on the bank|on the shore] and [waved|clapped].",
        "<end>",
    ),
    "{hero} and {friend} built a boat with help from {adult}, and they mended it when it had a hole.",
    (
        ("What did they build?", "They built a boat."),
        ("Who helped them?", "{adult} the {adult.kind} helped them."),
        ("How many days did they work?", "They worked for {number} days."),
        ("What was wrong with the boat?", "There was a hole in the boat."),
    ),
)

NEST = Plot(
    "nest",
    (
        "{hero} found a [tiny|small] bird {out.at}. It had fallen out of its nest and [could not fly|was cold].",
        '{hero} [picked it up carefully|put it in {hero.his} hat]. "[Do not be afraid|I will help you], little one," {hero.he} said.',
        "{hero.He} carried the bird {work.to}. {adult} the {adult.kind} was {adult.busy}. <hello>",
        '"[Look at this bird|This bird needs help]," <said> {hero}. {adult} [looked at it|bent down]. "[It needs warmth and food|Keep it warm and give it small seeds]," {adult.he} said.',
        "<thanks>",
        "¶",
        "{hero} made a bed [in a box|in a basket] with [soft wool|dry grass]. {friend} [brought seeds|brought water and worms].",
        "?Even {pet} the {pet.kind} [was quiet near the box|did not make a sound].",
        "For {number} days, they took care of the bird. It [grew stronger|got stronger] [every day|day by day].",
        "¶",
        "Then {hero} opened {hero.his} hands {place.at}, and the bird [flew up|spread its wings and flew away]. {hero} was [happy and sad at the same time|proud and a little sad].",
        "[The next morning|A few days later], the bird sat [on the window|on the roof] and [sang for {hero}|sang a song]. [It had not forgotten|It came back every day].",
        "<end>",
    ),
    "{hero} found a small bird {out.at} and took care of it with {friend} until it could fly.",
    (
        ("What did {hero} find?", "{hero} found a small bird."),
        ("Where did {hero} find the bird?", "{hero} found the bird {out.at}."),
        ("How many days did they take care of the bird?", "They took care of it for {number} days."),
        ("Who told {hero} what the bird needs?", "{adult} the {adult.kind} told {hero}."),
    ),
)

SNOW = Plot(
    "snow",
    (
        "[In the night|Overnight], it had snowed. The whole village was [white|white and still]. {hero} [ran outside|put on a warm coat] and called {friend}.",
        "They [built a snowman|made a big snowman] {out.at}. {hero} gave it {thing.a}, and {friend} gave it [a carrot for a nose|two black stones for eyes].",
        "?{pet} the {pet.kind} [jumped through the snow|rolled in the snow].",
        "But the path {work.to} was [covered with deep snow|gone]. {adult} the {adult.kind} could not get out!",
        '"[We must clear the path|{adult} needs us]," said {hero}. "[I will get two shovels|We need shovels]," <said> {friend}.',
        "¶",
        "They [worked|shovelled] all [morning|day]. [Their hands were cold|Their noses were red], but they [did not stop|sang while they worked].",
        'At last, they [reached the door|knocked on the door]. {adult} [opened it|came out] and [laughed|smiled]. "[My heroes|You have saved me]!" {adult.he} said.',
        "Inside, there was [a warm fire|hot tea] and {food}. {hero} and {friend} [warmed their hands|got warm again].",
        "¶",
        "When they [went home|walked back], the snowman was still there, with {thing.the}[ shining in the moonlight| and a bird on its head|].",
        "<end>",
    ),
    "After a snowy night, {hero} and {friend} cleared the path {work.to} for {adult}.",
    (
        ("What did they build?", "They built a snowman."),
        ("Who could not get out?", "{adult} the {adult.kind} could not get out."),
        ("What did {hero} give the snowman?", "{hero} gave the snowman {thing.a}."),
        ("What did they eat?", "They had {food}."),
    ),
)

PLOTS = (
    LOST, STUCK, SHARE, STORM, GIFT, SEED, QUARREL, TRADE, RACE, DARK, MAP,
    NEW_CHILD, HELPER, LETTER, MISSING_PET, MUSIC, CLOCK, BOAT, NEST, SNOW,
)  # fmt: skip
